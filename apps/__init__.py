"""The applications: file search, agent memory, the assistant and the `edge` command."""
