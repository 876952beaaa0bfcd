"""Config of Holdfast's own processes beyond one control and its gateways."""
