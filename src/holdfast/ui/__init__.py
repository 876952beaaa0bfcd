"""What people see: terminal screens and pages."""
