"""How do bytes come from the web and from object stores?

obstore and botocore, of the extra `cloud`, are imported by `stores` alone, and when a URL of an
object store is first opened; https needs only the standard library (docs/decisions/0011).
"""
