"""A Spark application that does nothing: submitting it makes Spark download the packages it is submitted with."""
