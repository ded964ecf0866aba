"""Kafka: events and the lane's standing in one transaction."""
