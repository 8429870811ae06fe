-- Dead letters by consumer group and original topic, with the time of the first and the last one.
select
  substr(topic, 6) as consumerGroup,
  coalesce(properties['RETRY_TOPIC'], properties['REAL_TOPIC'], properties['DLQ_ORIGIN_TOPIC']) as originalTopic,
  count(*) as messages,
  min(storeTimestamp) as first,
  max(storeTimestamp) as last
from messages
where startswith(topic, '%DLQ%')
group by 1, 2
order by messages desc, consumerGroup, originalTopic
