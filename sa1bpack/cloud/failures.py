"""What an object store or its library refuses, as an error that says what to do."""

from sa1bpack.cloud.stores import error_text
from sa1bpack.errors import StoreError

# What a store says about credentials, in the body of its answer.
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")


def final_error(error: Exception, address: str) -> StoreError | None:
    """The error for what does not pass by itself: credentials, a bucket that does not exist.

    None for what may be tried again, and for a missing object.

    error    of the library
    address  URL of the object
    """
    text = error_text(error)
    if any(word in text for word in _EXPIRED):
        return StoreError(f"{address}: the credentials have expired; log in again ({text})")
    if "computeMetadata" in text:  # asked last of all, of the instance that this would be
        return StoreError(
            f"{address}: no credentials of Google Cloud were found; set "
            "GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`"
        )
    if "NoSuchBucket" in text:
        return StoreError(
            f"{address}: there is no such bucket; check the URL and the endpoint, or create the "
            "bucket"
        )
    if type(error).__name__ in _REFUSED:
        return StoreError(
            f"{address}: access was refused; check what the credentials allow ({text})"
        )
    return None
