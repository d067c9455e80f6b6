"""Producer, consumer and admin in no dialect: buffers, retries, membership."""
