"""The assistant: pipelines, citations, `edge ask` and `edge chat`."""
