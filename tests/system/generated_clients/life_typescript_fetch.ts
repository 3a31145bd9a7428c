// Manages a pet, an image, an order and a user with a client that openapi-generator (typescript-fetch) generates.
import { Configuration, PetApi, ResponseError, StoreApi, UserApi } from "./typescript_fetch";

declare const process: { argv: string[] };
const [host, key, image] = process.argv.slice(2);
const basePath = `${host}/api/v3`;

function check(holds: boolean, what: unknown): void {
    if (!holds) throw new Error(JSON.stringify(what));
}

async function fails(status: number, call: Promise<unknown>): Promise<void> {
    const error = await call.then(() => undefined, (error: unknown) => error);
    check(error instanceof ResponseError && error.response.status === status, `no ${status}: ${error}`);
}

async function main(): Promise<void> {
    const configuration = new Configuration({ basePath, apiKey: key });
    const [pets, store, users] = [new PetApi(configuration), new StoreApi(configuration), new UserApi(configuration)];
    const tags = [{ name: "typescript-fetch" }];
    const { id } = await pets.addPet({ petInput: { name: "Rex", status: "available", category: { id: 1 }, tags } });
    const replaced = await pets.updatePet({ petReplacement: { id, name: "Max", tags } });
    check(replaced.name === "Max" && (await pets.getPetById({ petId: id })).tags[0]?.name === tags[0]?.name, replaced);
    check((await pets.findPetsByTags({ tags: ["typescript-fetch"] })).some((pet) => pet.id === id), "not found by tags");
    check((await pets.patchPet({ petId: id, petPatch: { category: null } })).category === undefined, "not patched");
    check((await pets.updatePetWithForm({ petId: id, name: "Rex" })).name === "Rex", "not updated by the query");

    const bytes = Uint8Array.from(atob(image ?? ""), (byte) => byte.charCodeAt(0));
    const { imageId, type } = await pets.uploadFile({ petId: id, body: new Blob([bytes]) });
    check(type === "image/png" && (await pets.listImages({ petId: id })).length === 1, type);
    check((await pets.getImage({ petId: id, imageId })).size === bytes.length, "another image");
    await pets.deleteImage({ petId: id, imageId });

    const shipDate = new Date("2026-01-31T12:00:00Z");
    const order = await store.placeOrder({ orderInput: { petId: id, shipDate } });
    check(order.quantity === 1 && order.shipDate?.getTime() === shipDate.getTime(), order);
    check((await store.getInventory()).pending >= 1, "not pending");
    check((await store.patchOrder({ orderId: order.id, orderPatch: { status: "approved" } })).status === "approved", order);
    await store.deleteOrder({ orderId: order.id });
    await fails(404, store.getOrderById({ orderId: order.id }));

    const login = { username: "typescript-fetch", password: "correct horse battery staple" };
    await users.createUser({ userInput: { ...login, firstName: "Ada" } });
    const token = await users.createSession({ login });
    const own = new UserApi(new Configuration({ basePath, headers: { Authorization: `Bearer ${token}` } }));
    const updated = await own.updateUser({ username: login.username, userDetails: { lastName: "Lovelace" } });
    check(updated.lastName === "Lovelace" && updated.firstName === undefined, updated);
    await own.logoutUser();
    await fails(401, own.getUserByName({ username: login.username }));
    await users.deleteUser({ username: login.username });
    await pets.deletePet({ petId: id });
    await fails(404, pets.getPetById({ petId: id }));
}

void main();
