"""The passages and questions of `edge demo`."""
