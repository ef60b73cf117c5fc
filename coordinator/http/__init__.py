"""The HTTP side: routes and who may use them, the stream, the audit log, the listening port."""
