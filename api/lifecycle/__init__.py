"""Where a job is and what is done next. The only package that writes a job's status.

`intents` stores what users want, `facts` reads what is, `decision` (pure) finds the one next step, `steps` names the steps,
`carrying_out` does them, and `reconciler` is the loop around it all.
"""
