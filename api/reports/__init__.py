"""What drivers ask for and report: each report is checked, masked and stored."""
