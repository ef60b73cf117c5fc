"""Hold the generated protobuf and gRPC stubs."""
