"""Producer, consumer and admin for all dialects: buffers, retries, membership."""
