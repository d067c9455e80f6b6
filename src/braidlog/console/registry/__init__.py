"""The schema registry's REST API (Confluent's), served by the console's process."""
