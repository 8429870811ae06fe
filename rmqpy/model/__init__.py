"""Words that every floor shares: ids, codes, flags, errors, messages, settings. Imports nothing of
rmqpy.
"""
