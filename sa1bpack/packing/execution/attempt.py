"""What every way of execution does with one pair: an attempt at the sample."""

from pathlib import PurePath

from sa1bpack.errors import AnnotationError, MaskError, SampleError
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Buffers, make_sample
from sa1bpack.packing.shard_builder import Dropped, Outcome, Rejected


def attempt(file_name: str, jpeg, json, options: PackOptions, buffers: Buffers) -> Outcome:
    """Make a sample; what goes wrong with it becomes a Rejected.

    An exception that no code of ours raises on purpose is filed as "unexpected" with its type: one
    image must not end a run of days. A lack of memory and errors of the operating system (which,
    unlike PIL's own OSErrors, have a number) are not the sample's fault, and are raised.
    """
    try:
        packed = make_sample(file_name, jpeg, json, options, buffers)
    except (AnnotationError, MaskError) as error:
        record = str(PurePath(file_name).with_suffix(".json"))
        return Rejected(record, error.code, str(error))
    except SampleError as error:
        return Rejected(file_name, error.code, str(error))
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return Rejected(file_name, "unexpected", f"{type(error).__name__}: {error}")
    return Dropped() if packed is None else packed
