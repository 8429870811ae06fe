"""The switch of a running broker from a classic log to DLedger, together with its group.

==============  ==============================================================================
``live``        carries out what ``rmqpy.broker.replication.switch_protocol`` decides
``local``       what changes in this broker: prepare, freeze, exchange, or undo
``exchange``    the exchange of the log in the running broker
``completion``  broker.conf and the last record, a moment after the exchange
``standby``     the ports of members that stand ready, on asyncio
``journal``     the record that a start reads
``checks``      what prevents a switch
``inquiry``     the question of a member in doubt for the decision
``requests``    the bodies of requests and answers
==============  ==============================================================================
"""
