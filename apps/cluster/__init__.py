"""A collection that is spread over several machines."""
