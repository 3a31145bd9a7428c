// Manages a pet, an image, an order and a user with a client that orval generates.
import * as api from "./orval";

declare const process: { argv: string[] };
const [, key = "", image = ""] = process.argv.slice(2);
const admin = { headers: { api_key: key } };

function check(holds: boolean, what: unknown): asserts holds {
    if (!holds) throw new Error(JSON.stringify(what));
}

/** Returns the body of a response with a status. */
async function got<R extends { status: number; data: unknown }, S extends R["status"]>(
    status: S,
    call: Promise<R>,
): Promise<Extract<R, { status: S }>["data"]> {
    const response = await call;
    check(response.status === status, response);
    return response.data;
}

async function main(): Promise<void> {
    const tags = [{ name: "orval" }];
    const { id } = await got(201, api.addPet({ name: "Rex", tags }, admin));
    check((await got(200, api.updatePet({ id, name: "Max", tags }, admin))).name === "Max", "not replaced");
    const found = await got(200, api.findPetsByTags({ tags: ["orval", "none"] }, admin));
    check(found.some((pet) => pet.id === id), found);

    // The generated functions send and read JSON; their URLs and types are used.
    const bytes = Uint8Array.from(atob(image), (byte) => byte.charCodeAt(0));
    const upload = await fetch(api.getUploadFileUrl(id), { method: "POST", body: bytes, ...admin });
    const { imageId }: api.UploadedImage = await upload.json();
    const download = await fetch(api.getGetImageUrl(id, imageId));
    check((await download.arrayBuffer()).byteLength === bytes.length, "another image");
    await got(200, api.deleteImage(id, imageId, admin));

    const order = await got(201, api.placeOrder({ petId: id, quantity: 2 }, admin));
    check(order.quantity === 2 && order.status === "placed", order);
    const approved = await got(200, api.patchOrder(order.id, { status: "approved" }, admin));
    check(approved.status === "approved", approved);
    await got(200, api.deleteOrder(order.id, admin));
    check((await got(404, api.getOrderById(order.id, admin))).code === 404, "another code");

    const login = { username: "orval", password: "correct horse battery staple" };
    await got(201, api.createUser(login));
    const own = { headers: { Authorization: `Bearer ${await got(200, api.createSession(login))}` } };
    const changed = await got(200, api.updateUser(login.username, { firstName: "Ada" }, own));
    check(changed.firstName === "Ada", changed);
    await got(200, api.logoutUser(own));
    await got(401, api.getUserByName(login.username, own));
    await got(200, api.deleteUser(login.username, admin));
    await got(200, api.deletePet(id, admin));
    await got(404, api.getPetById(id, admin));
}

void main();
