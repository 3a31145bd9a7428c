//! Pets of the sample store.

use crate::domain::{
    Invalid,
    order::Status,
    pet::{self, PetDetails, Tag},
};

/// Pet of the sample store. It is available, unless it is ordered.
#[derive(Debug)]
pub struct SamplePet {
    name: &'static str,
    category: Category,
    tags: &'static [&'static str],
    /// State of the order that it is added with.
    pub order: Option<Status>,
    /// Picture: a PNG of [`WIDTH`] by [`HEIGHT`] pixels.
    pub picture: &'static [u8],
}

/// Width of the pictures in pixels.
pub const WIDTH: u32 = 480;
/// Height of the pictures in pixels.
pub const HEIGHT: u32 = 360;

#[derive(Debug, Clone, Copy)]
enum Category {
    Dogs = 1,
    Cats,
    Rabbits,
    Rodents,
    Birds,
    Fish,
    Reptiles,
    Others,
}

impl SamplePet {
    /// Returns the fields of the pet, without its picture.
    pub fn details(&self) -> Result<PetDetails, Invalid> {
        let category = pet::Category {
            id: Some(self.category as i64),
            name: Some(format!("{:?}", self.category).parse()?),
        };
        let tags = self.tags.iter().map(|name| {
            let name = Some(name.parse()?);
            Ok(Tag { id: None, name })
        });
        Ok(PetDetails {
            category: Some(category),
            tags: tags.collect::<Result<_, _>>()?,
            ..PetDetails::new(self.name.parse()?)
        })
    }
}

/// Declares pets, with the files of their pictures.
macro_rules! pets {
    ($($name:literal, $file:literal, $category:ident, [$($tag:literal),*], $order:expr;)+) => {
        [$(SamplePet {
            name: $name,
            category: Category::$category,
            tags: &[$($tag),*],
            order: $order,
            picture: include_bytes!(concat!("pictures/", $file, ".png")),
        }),+]
    };
}

/// The pets. Their places are their numbers in the database: a new one is added at the end.
#[rustfmt::skip]
pub const PETS: [SamplePet; 30] = pets![
    "Bella", "bella", Dogs, ["friendly", "likes children", "large"], None;
    "Milo", "milo", Cats, ["curious", "indoor"], None;
    "Kiwi", "kiwi", Birds, ["talks", "small"], None;
    "Shelly", "shelly", Reptiles, ["quiet", "long-lived"], None;
    "Clover", "clover", Rabbits, ["soft", "likes children"], None;
    "Coral", "coral", Fish, ["salt water", "small"], None;
    "Rocky", "rocky", Dogs, ["brave", "small"], Some(Status::Placed);
    "Cleo", "cleo", Cats, ["elegant", "outdoor"], None;
    "Nibbles", "nibbles", Rodents, ["small", "awake at night"], None;
    "Rio", "rio", Birds, ["talks", "large", "long-lived"], None;
    "Bramble", "bramble", Others, ["shy", "awake at night"], None;
    "Luna", "luna", Dogs, ["sporty", "large"], Some(Status::Approved);
    "Misty", "misty", Cats, ["calm", "indoor"], Some(Status::Delivered);
    "Goldie", "goldie", Fish, ["fresh water", "small"], None;
    "Hazel", "hazel", Rabbits, ["calm", "soft"], None;
    "Ziggy", "ziggy", Reptiles, ["climbs", "small"], None;
    "Sunny", "sunny", Birds, ["sings", "small"], Some(Status::Placed);
    "Charlie", "charlie", Dogs, ["friendly", "sporty"], None;
    "Pip", "pip", Rodents, ["small", "curious"], None;
    "Penny", "penny", Others, ["lays eggs", "outdoor"], None;
    "Simba", "simba", Cats, ["talks", "curious", "indoor"], None;
    "Indigo", "indigo", Fish, ["fresh water", "lives alone"], None;
    "Noodle", "noodle", Reptiles, ["quiet", "climbs"], Some(Status::Delivered);
    "Ash", "ash", Rabbits, ["curious", "likes children"], None;
    "Biscuit", "biscuit", Rodents, ["friendly", "likes children"], None;
    "Sky", "sky", Birds, ["talks", "small"], None;
    "Lily", "lily", Others, ["awake at night", "small"], None;
    "Pearl", "pearl", Birds, ["large", "dances"], None;
    "Spike", "spike", Reptiles, ["calm", "likes heat"], Some(Status::Placed);
    "Waddles", "waddles", Others, ["likes water", "outdoor"], None;
];
