"""Drivers' requests and reports: each report is checked, masked and stored."""
