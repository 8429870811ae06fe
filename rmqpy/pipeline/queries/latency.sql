-- Time from send to consumption by consumer group and topic, from message traces (system topics).
with records as (
  select split(record, '\u0001') as part
  from (
    select explode(split(decode(body, 'UTF-8'), '\u0002')) as record
    from messages
    where topic = 'RMQ_SYS_TRACE_TOPIC'
  )
),
sent as (
  select part[5] as messageId, min(part[4]) as topic, min(cast(part[1] as bigint)) as sentMs
  from records
  where part[0] = 'Pub'
  group by 1
),
received as (
  select part[5] as messageId, part[3] as consumerGroup, min(cast(part[1] as bigint)) as receivedMs
  from records
  where part[0] = 'SubBefore'
  group by 1, 2
)
select
  consumerGroup,
  topic,
  count(*) as messages,
  percentile(receivedMs - sentMs, 0.5) as p50Ms,
  percentile(receivedMs - sentMs, 0.99) as p99Ms,
  max(receivedMs - sentMs) as maxMs
from received join sent using (messageId)
group by 1, 2
order by maxMs desc, consumerGroup, topic
