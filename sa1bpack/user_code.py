"""Calls of functions that the user passed: transforms, conditions, schedules, progress, and so on.

Whatever such a function raises, the caller learns which function it was and what it was called for.
It is never taken for something else on its way: `StopIteration` would end a loop, `IndexError` the
iteration over a torch Subset, `SystemExit` a thread or a worker process without a word, and a
`ReadError` would drop the sample. So there is one type for all of them, `UserCodeError`. Only what
this package raised for what the function asked it to do stays as it is, such as `FormatError` for a
damaged column.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from sa1bpack.errors import ReadError, Sa1bpackError, UserCodeError

# Characters of a message of the user's that a message of ours repeats.
_LONGEST = 300


def call_user(function: Callable[..., Any], *args: Any, role: str, subject: str) -> Any:
    """The result of a function that the user passed.

    Args:
        function: the function, which is called with `args`.
        role: the option that it was passed as, such as "transform".
        subject: what it is called for, such as the name of a sample.

    Raises:
        UserCodeError: the function raised an exception, which is the cause of this one.
        Sa1bpackError: the function called this package, which raised it; with a note. A ReadError,
            for which a sample may be dropped, becomes a UserCodeError.
        KeyboardInterrupt: as it is, from any process and thread.
        BaseException: in the main thread of the program, what is no `Exception`: `SystemExit`, or
            what the handler of a signal has raised. It ends the program, with a note.
    """
    try:
        return function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_of_package(error) or _ends_the_program(error):
            error.add_note(f"raised by {role} for {subject}")
            raise
        raise UserCodeError(f"{role} raised {error_text(error)} for {subject}") from error


def is_of_user(thing: Any) -> bool:
    """True if the class of an object is not of this package: its methods are code of the user."""
    return not type(thing).__module__.startswith("sa1bpack.")


def _is_of_package(error: BaseException) -> bool:
    """True for an error of this package that is not about a sample that could be dropped."""
    return isinstance(error, Sa1bpackError) and not isinstance(error, ReadError)


def _ends_the_program(error: BaseException) -> bool:
    """True if the exception is to end the program, which it only does in its main thread."""
    if isinstance(error, Exception | GeneratorExit):
        return False
    return threading.current_thread() is threading.main_thread() and not worker_count()


def worker_count() -> int:
    """How many workers a torch DataLoader has of which this process is one; 0 elsewhere."""
    torch_data = sys.modules.get("torch.utils.data")
    get_worker_info = getattr(torch_data, "get_worker_info", None)  # None: being imported
    if get_worker_info is None or get_worker_info() is None:
        return 0
    workers: int = get_worker_info().num_workers
    return workers


def error_text(error: BaseException) -> str:
    """Type and message in one line, even if the message cannot be made."""
    lines = traceback.format_exception_only(type(error), error)
    text = " ".join("".join(lines).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return text
