"""The types of Headrace's custom resources and of what gateways report. Pure: no I/O, no clock."""
