"""Images under their maps, their pixels and their colours."""
