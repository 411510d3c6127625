"""Libraries, which jobs bring beside their programs: inspection of uploads, rules, and copies on this host."""
