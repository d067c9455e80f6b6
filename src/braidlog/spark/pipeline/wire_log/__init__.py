"""The pipeline of kind `wire-log`: requests and answers of a node's wire log as tables."""
