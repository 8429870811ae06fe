"""The commands of ``rmqpy pipeline``: audits, exports, rebuilds, SQL, and reports.

May import ``datasource``, ``spark``, and ``arrow``. Start reading in
:mod:`~rmqpy.pipeline.jobs.export`.
"""
