"""The names that `sa1bpack/__init__.py` imports on first use."""

from sa1bpack import errors as errors
from sa1bpack import masks as masks
from sa1bpack import transforms as transforms
from sa1bpack.adapters.collate import Collate as Collate
from sa1bpack.adapters.dataloader import make_dataloader as make_dataloader
from sa1bpack.dataset.dataset import Dataset as Dataset
from sa1bpack.dataset.open_pack import open as open
from sa1bpack.deriving.attach import attach as attach
from sa1bpack.deriving.run import derive as derive
from sa1bpack.deriving.target import DeriveResult as DeriveResult
from sa1bpack.errors import FormatError as FormatError
from sa1bpack.errors import LoaderError as LoaderError
from sa1bpack.errors import OptionError as OptionError
from sa1bpack.errors import ReadError as ReadError
from sa1bpack.exploring.explore import explore as explore
from sa1bpack.export.annotations import ExportResult as ExportResult
from sa1bpack.export.annotations import export_coco as export_coco
from sa1bpack.export.annotations import export_sa1b as export_sa1b
from sa1bpack.export.copy_selection import CopyResult as CopyResult
from sa1bpack.export.copy_selection import copy_selection as copy_selection
from sa1bpack.export.info import info as info
from sa1bpack.export.report import report as report
from sa1bpack.export.show import show as show
from sa1bpack.format.verify import verify as verify
from sa1bpack.loading.loader import Loader as Loader
from sa1bpack.loading.mix import Mix as Mix
from sa1bpack.loading.mix_stats import MixStats as MixStats
from sa1bpack.loading.options import ReadingOptions as ReadingOptions
from sa1bpack.loading.order.batches import OrderedBatches as OrderedBatches
from sa1bpack.loading.order.buckets import Buckets as Buckets
from sa1bpack.loading.order.mask_passes import MaskPassOrder as MaskPassOrder
from sa1bpack.loading.order.orders import Extent as Extent
from sa1bpack.loading.order.orders import LocalShuffleOrder as LocalShuffleOrder
from sa1bpack.loading.order.orders import NodeShuffleOrder as NodeShuffleOrder
from sa1bpack.loading.order.orders import SequentialOrder as SequentialOrder
from sa1bpack.loading.order.orders import ShuffleOrder as ShuffleOrder
from sa1bpack.loading.order.orders import WeightedOrder as WeightedOrder
from sa1bpack.loading.stats import LoadingStats as LoadingStats
from sa1bpack.measuring.bench import bench as bench
from sa1bpack.packing.apply_repair import RepairResult as RepairResult
from sa1bpack.packing.estimate import estimate as estimate
from sa1bpack.packing.merge import MergeResult as MergeResult
from sa1bpack.packing.merge import merge as merge
from sa1bpack.packing.options import PackOptions as PackOptions
from sa1bpack.packing.repair import repair as repair
from sa1bpack.packing.run import FinalizeResult as FinalizeResult
from sa1bpack.packing.run import PackResult as PackResult
from sa1bpack.packing.run import finalize as finalize
from sa1bpack.packing.run import pack as pack
from sa1bpack.packing.run import pack_part as pack_part
from sa1bpack.raw.dataset import TarDataset as TarDataset
from sa1bpack.raw.streaming import IterableTarDataset as IterableTarDataset
from sa1bpack.schedules import CosineSchedule as CosineSchedule
from sa1bpack.schedules import FunctionSchedule as FunctionSchedule
from sa1bpack.schedules import LinearSchedule as LinearSchedule
from sa1bpack.schedules import PiecewiseSchedule as PiecewiseSchedule
from sa1bpack.transforms.seeding import Seeded as Seeded

__version__: str
SCHEMES: dict[str, str]
PICTURES: str
