-- Volume by sending host: messages, bytes of the log, and topics.
select
  regexp_replace(bornHost, ':[0-9]+$', '') as host,
  count(*) as messages,
  sum(size) as bytes,
  count(distinct topic) as topics,
  min(bornTimestamp) as first,
  max(bornTimestamp) as last
from messages
group by 1
order by bytes desc, host
