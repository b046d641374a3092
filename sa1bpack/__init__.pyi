"""Types of the names that `sa1bpack/__init__.py` imports on first use."""

from sa1bpack import errors as errors
from sa1bpack import masks as masks
from sa1bpack import transforms as transforms
from sa1bpack.batch.collate import Collate as Collate
from sa1bpack.dataset.dataset import Dataset as Dataset
from sa1bpack.dataset.open_pack import open as open
from sa1bpack.deriving.attach import attach as attach
from sa1bpack.deriving.run import derive as derive
from sa1bpack.deriving.target import DeriveResult as DeriveResult
from sa1bpack.errors import FormatError as FormatError
from sa1bpack.errors import LoaderError as LoaderError
from sa1bpack.errors import OptionError as OptionError
from sa1bpack.errors import ReadError as ReadError
from sa1bpack.export.coco import export_coco as export_coco
from sa1bpack.export.sa1b import export_sa1b as export_sa1b
from sa1bpack.export.selection import ExportResult as ExportResult
from sa1bpack.format.verify import verify as verify
from sa1bpack.loading.dataloader import make_dataloader as make_dataloader
from sa1bpack.loading.loader import Loader as Loader
from sa1bpack.loading.options import ReadingOptions as ReadingOptions
from sa1bpack.loading.statistics.stats import LoadingStats as LoadingStats
from sa1bpack.measuring.bench import bench as bench
from sa1bpack.measuring.tune import tune as tune
from sa1bpack.order.batches import OrderedBatches as OrderedBatches
from sa1bpack.order.orders import Extent as Extent
from sa1bpack.order.orders import LocalShuffleOrder as LocalShuffleOrder
from sa1bpack.order.orders import SequentialOrder as SequentialOrder
from sa1bpack.order.orders import ShuffleOrder as ShuffleOrder
from sa1bpack.order.orders import WeightedOrder as WeightedOrder
from sa1bpack.packing.estimate import estimate as estimate
from sa1bpack.packing.merge.run import MergeResult as MergeResult
from sa1bpack.packing.merge.run import merge as merge
from sa1bpack.packing.options import PackOptions as PackOptions
from sa1bpack.packing.repair.result import RepairResult as RepairResult
from sa1bpack.packing.repair.run import repair as repair
from sa1bpack.packing.run import PackResult as PackResult
from sa1bpack.packing.run import pack as pack
from sa1bpack.raw.dataset import TarDataset as TarDataset
from sa1bpack.raw.streaming import IterableTarDataset as IterableTarDataset
from sa1bpack.report.info import info as info
from sa1bpack.report.show import show as show
from sa1bpack.report.write_report import write_report as write_report

__version__: str
