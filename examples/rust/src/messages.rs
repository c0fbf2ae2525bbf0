//! Messages made of parts of the script.

use std::collections::HashMap;

use crate::pb::{self, condition::Test, filter::Node, value::Kind, write_item};
use crate::script::{self, Condition};

/// The message of one item of a write; ids are known by the keys of the script.
pub fn write_item(item: &script::Item, ids: &HashMap<String, String>) -> pb::WriteItem {
    let item = match item {
        script::Item::Memory(memory) => write_item::Item::Memory(pb::Memory {
            dedup_key: memory.key.clone(),
            content: memory.content.clone(),
            summary: memory.summary.clone(),
            vector: vector(&memory.vector),
            metadata: Some(pb::Metadata {
                ts: memory.ts,
                importance: memory.importance,
                topic: memory.topic.clone(),
                ..Default::default()
            }),
            ttl_ms: memory.ttl_ms,
            ..Default::default()
        }),
        script::Item::Touch(touch) => write_item::Item::Touch(pb::Touch {
            id: ids[&touch.key].clone(),
            importance: touch.importance,
            kind: kind(&touch.kind).into(),
            ..Default::default()
        }),
        script::Item::Update(update) => write_item::Item::Update(pb::Update {
            id: ids[&update.key].clone(),
            if_version: update.if_version,
            summary: Some(update.summary.clone()),
            reason: update.reason.clone(),
            ..Default::default()
        }),
    };
    pb::WriteItem { item: Some(item) }
}

fn kind(name: &str) -> pb::TouchKind {
    pb::TouchKind::from_str_name(&format!("TOUCH_KIND_{name}")).unwrap_or_default()
}

pub fn vector(numbers: &Option<Vec<f32>>) -> Option<pb::Vector> {
    let values = numbers.clone()?;
    Some(pb::Vector {
        values,
        ..Default::default()
    })
}

/// True where all of the conditions are.
pub fn filters(conditions: &Option<Vec<Condition>>) -> Option<pb::Filter> {
    let all = conditions
        .as_ref()?
        .iter()
        .map(|one| node(Node::Condition(condition(one))));
    Some(node(Node::AllOf(pb::FilterList {
        filters: all.collect(),
    })))
}

fn node(node: Node) -> pb::Filter {
    pb::Filter { node: Some(node) }
}

fn condition(one: &Condition) -> pb::Condition {
    let test = match &one.among {
        Some(among) => {
            let values = among
                .iter()
                .map(|text| value(Kind::StringValue(text.clone())));
            Test::InValues(pb::ValueList {
                values: values.collect(),
            })
        }
        None => {
            let gte = one.gte.map(|least| value(Kind::DoubleValue(least)));
            Test::Range(pb::Range {
                gte,
                ..Default::default()
            })
        }
    };
    pb::Condition {
        field: one.field.clone(),
        test: Some(test),
    }
}

fn value(kind: Kind) -> pb::Value {
    pb::Value { kind: Some(kind) }
}
