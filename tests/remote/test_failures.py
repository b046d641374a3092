"""What a store refuses for good is an error that says what to do."""

import pytest

from sa1bpack.remote.stores import final_error

ADDRESS = "gs://bucket/pack/manifest.json"


class PermissionDeniedError(Exception):
    """Named as the library's."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Exception("<Error><Code>ExpiredToken</Code></Error>"), "credentials have expired; log in"),
        (Exception("<Error><Code>NoSuchBucket</Code></Error>"), "there is no such bucket"),
        (PermissionDeniedError("403 Forbidden"), "access was refused"),
        (
            Exception("token request: GET http://169.254.169.254/computeMetadata/v1/instance"),
            "no credentials of Google Cloud were found; set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "`gcloud auth application-default login`",
        ),
    ],
)
def test_what_does_not_pass_by_itself_has_a_remedy(error, text):
    found = str(final_error(error, ADDRESS))
    assert found.startswith(f"{ADDRESS}: ") and text in found


def test_what_may_pass_is_tried_again():
    assert final_error(Exception("503 SlowDown"), ADDRESS) is None
    assert final_error(FileNotFoundError("404 NoSuchKey"), ADDRESS) is None
