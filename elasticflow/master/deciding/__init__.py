"""What the master decides, a subject a module: functions of ``Facts``, an event and the time give actions.

Imports say who may call whom, and go one way:

    joining  standstill  checkpoints   takeover
        departures  gaining
        generations
        staffing
        planning  records  diverging  auditing
        ending
        facts

``MasterState`` has the table of who handles which event (``HANDLERS`` of each), and the clock.
"""
