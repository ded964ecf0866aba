"""The stream lanes: every change, once and in order, to Kafka, Kinesis or any other target."""
