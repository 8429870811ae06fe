-- Lag of each consumer group by period: messages sent and not yet consumed, from message traces (system topics).
-- minutes: 60
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
),
subscriptions as (
  select distinct consumerGroup, topic from received join sent using (messageId)
),
changes as (
  select consumerGroup, topic, sentMs as atMs, 1 as change
  from subscriptions join sent using (topic)
  union all
  select consumerGroup, topic, greatest(receivedMs, sentMs) as atMs, -1 as change
  from received join sent using (messageId)
),
periods as (
  select
    consumerGroup,
    topic,
    floor(atMs / (${minutes} * 60000)) as period,
    sum(change) as change,
    count_if(change = 1) as sent,
    count_if(change = -1) as consumed
  from changes
  group by 1, 2, 3
)
select
  consumerGroup,
  topic,
  timestamp_millis(cast(period * ${minutes} * 60000 as bigint)) as start,
  sent,
  consumed,
  sum(change) over (partition by consumerGroup, topic order by period) as lag
from periods
order by consumerGroup, topic, start
