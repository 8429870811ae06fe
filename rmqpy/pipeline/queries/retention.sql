-- Effect of another fileReservedTime: what each topic would keep and lose, counted back from the newest message.
-- hours: 72
select
  topic,
  count(*) as messages,
  sum(size) as bytes,
  count_if(storeTimestamp < newest - make_dt_interval(0, ${hours})) as goneMessages,
  sum(if(storeTimestamp < newest - make_dt_interval(0, ${hours}), size, 0)) as goneBytes,
  min(storeTimestamp) as oldest
from messages cross join (select max(storeTimestamp) as newest from messages)
group by 1
order by goneBytes desc, topic
