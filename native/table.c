/* Hash tables by name (FNV-1a, open addressing): the topics and readers of the fast path. */
#include <string.h>

#include "rmqpy_native.h"

/* Move the slots in use to `table`, which is empty. Those without a length belong to removed names. */
void rmq_move_slots(const rmq_slot *slots, size_t count, rmq_table *table)
{
    for (size_t i = 0; i < count; i++) {
        if (slots[i].key == NULL || slots[i].key_length == 0)
            continue;
        uint32_t place = slots[i].hash & table->mask;
        while (table->slots[place].key != NULL)
            place = (place + 1) & table->mask;
        table->slots[place] = slots[i];
    }
}

rmq_slot *rmq_find_slot(const rmq_table *table, const uint8_t *key, size_t length)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ key[i]) * 16777619u;
    for (uint32_t place = hash & table->mask;; place = (place + 1) & table->mask) {
        rmq_slot *const slot = &table->slots[place];
        if (slot->key == NULL) {
            slot->hash = hash;
            return slot;
        }
        if (slot->hash == hash && slot->key_length == length && memcmp(slot->key, key, length) == 0)
            return slot;
    }
}
