"""Who is told what Holdfast knows, beside those who ask: CloudWatch, OpenTelemetry collectors."""
