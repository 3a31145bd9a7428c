// Manages a pet, an image, an order and a user with a client that openapi-zod-client generates. It validates what it sends and
// gets by the schemas of the document.
import { createApiClient } from "./zodios";

declare const process: { argv: string[] };
const [host = "", key = "", image = ""] = process.argv.slice(2);

function check(holds: boolean, what: unknown): void {
    if (!holds) throw new Error(JSON.stringify(what));
}

const client = (headers: Record<string, string>) => createApiClient(`${host}/api/v3`, { axiosConfig: { headers } });

async function fails(status: number, call: Promise<unknown>): Promise<void> {
    const failure = await call.then(() => undefined, (error: { response?: { status: number } }) => error);
    check(failure?.response?.status === status, `no ${status}`);
}

async function main(): Promise<void> {
    const admin = client({ api_key: key });
    const tags = [{ name: "zod" }];
    const { id } = await admin.addPet({ name: "Rex", tags });
    const pet = { params: { petId: id } };
    check((await admin.updatePet({ id, name: "Max", tags })).name === "Max", "not replaced");
    const found = await admin.findPetsByTags({ queries: { tags: ["zod", "none"] } });
    check(found.some((it) => it.id === id), found);

    const bytes = Uint8Array.from(atob(image), (byte) => byte.charCodeAt(0));
    const { imageId } = await admin.uploadFile(new File([bytes], "image.png"), pet);
    const images = await admin.listImages(pet);
    check(images.length === 1 && images[0]?.size === bytes.length, images);
    await admin.deleteImage(undefined, { params: { petId: id, imageId } });

    const order = await admin.placeOrder({ petId: id, quantity: 2 });
    check(order.quantity === 2 && order.status === "placed", order);
    const ordered = { params: { orderId: order.id } };
    check((await admin.patchOrder({ status: "approved" }, ordered)).status === "approved", "not approved");
    await admin.deleteOrder(undefined, ordered);
    await fails(404, admin.getOrderById(ordered));

    const login = { username: "zod-client", password: "correct horse battery staple" };
    const account = { params: { username: login.username } };
    await client({}).createUser(login);
    const own = client({ Authorization: `Bearer ${await client({}).createSession(login)}` });
    check((await own.updateUser({ firstName: "Ada" }, account)).firstName === "Ada", "not changed");
    await own.logoutUser();
    await fails(401, own.getUserByName(account));
    await admin.deleteUser(undefined, account);
    await admin.deletePet(undefined, pet);
    await fails(404, admin.getPetById(pet));
}

void main();
