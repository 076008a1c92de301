"""`edge plan`: plans the arrangement of a pipeline, before anything is bought or run."""
