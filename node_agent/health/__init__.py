"""The health of the devices: ``verdicts`` says what an event or a reading means (pure), ``board`` keeps the open
causes, ``watcher`` feeds it from the hardware.
"""
