"""The control process: it watches the fleet and tells gateways; no request ever waits for it."""
