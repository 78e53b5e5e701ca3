"""AMQP as bytes: frames, methods, tables, properties, errors; nothing here acts or keeps state."""
