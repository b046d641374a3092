"""What a person looks at: summaries of a pack."""
