"""The service: streams behind HTTP, durable in one SQLite file, with a live page. Needs the extra `serve`."""
