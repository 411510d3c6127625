"""The SDK that jobs are written with, and the runtime that runs them on Spark. Users import from `keyscale`."""
