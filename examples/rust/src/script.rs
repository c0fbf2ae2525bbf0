//! The conversation as ../conversation.json has it.

use serde::Deserialize;

#[derive(Deserialize)]
pub struct Script {
    pub tenant: String,
    pub session: String,
    pub steps: Vec<Step>,
}

/// One call, or a few that belong together.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Step {
    pub step: String,
    pub call: String,
    pub request_id: String,
    pub repeat_of: Option<String>,
    pub items: Vec<Item>,
    pub text: String,
    pub vector: Option<Vec<f32>>,
    pub keys: Vec<String>,
    pub filters: Option<Vec<Condition>>,
    pub top_k: u32,
    pub min_score: Option<f32>,
    pub mode: Option<String>,
    pub page_size: u32,
    pub include_content: bool,
    pub factor: Option<f32>,
    pub validate_only: bool,
    pub times: usize,
    pub tenant: Option<String>,
    pub token: Option<String>,
    pub deadline_ms: Option<u64>,
}

/// One of a write.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    Memory(Memory),
    Touch(Touch),
    Update(Update),
}

impl Item {
    /// The name that the script has for the memory.
    pub fn key(&self) -> &str {
        match self {
            Item::Memory(memory) => &memory.key,
            Item::Touch(touch) => &touch.key,
            Item::Update(update) => &update.key,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Memory {
    pub key: String,
    pub content: String,
    pub summary: String,
    pub vector: Option<Vec<f32>>,
    pub importance: Option<f32>,
    pub topic: String,
    pub ts: Option<i64>,
    pub ttl_ms: Option<i64>,
}

#[derive(Deserialize)]
pub struct Touch {
    pub key: String,
    pub kind: String,
    pub importance: Option<f32>,
}

#[derive(Deserialize)]
pub struct Update {
    pub key: String,
    pub if_version: u32,
    pub summary: String,
    #[serde(default)]
    pub reason: String,
}

/// Strings to be among, or a number to reach.
#[derive(Deserialize)]
pub struct Condition {
    pub field: String,
    #[serde(rename = "in")]
    pub among: Option<Vec<String>>,
    pub gte: Option<f64>,
}
