// Manages a pet, an image, an order and a user with a client that @hey-api/openapi-ts generates.
import * as api from "./hey_api";
import { client } from "./hey_api/client.gen";

declare const process: { argv: string[] };
const [host, key, image] = process.argv.slice(2);

function check(holds: boolean, what: unknown): void {
    if (!holds) throw new Error(JSON.stringify(what));
}

async function fails(status: number, call: Promise<{ error?: unknown; response?: Response }>): Promise<void> {
    const { error, response } = await call;
    check(response?.status === status && (error as api.Problem).code === status, `no ${status}`);
}

async function main(): Promise<void> {
    client.setConfig({ baseUrl: `${host}/api/v3`, auth: (way) => (way.type === "apiKey" ? key : undefined) });
    const throwOnError = true as const;
    const tags = [{ name: "hey-api" }];
    const { data: pet } = await api.addPet({ body: { name: "Rex", tags }, throwOnError });
    const path = { petId: pet.id };
    const { data: replaced } = await api.updatePet({ body: { id: pet.id, name: "Max", tags }, throwOnError });
    const { data: found } = await api.findPetsByTags({ query: { tags: ["hey-api", "none"] }, throwOnError });
    check(replaced.name === "Max" && found.some(({ id }) => id === pet.id), found);

    const bytes = Uint8Array.from(atob(image ?? ""), (byte) => byte.charCodeAt(0));
    const { data: uploaded } = await api.uploadFile({ path, body: new Blob([bytes]), throwOnError });
    const one = { ...path, imageId: uploaded.imageId };
    const { data: got } = await api.getImage({ path: one, parseAs: "blob", throwOnError });
    check((got as Blob).size === bytes.length, "another image");
    await api.deleteImage({ path: one, throwOnError });

    const { data: order } = await api.placeOrder({ body: { petId: pet.id, quantity: 2 }, throwOnError });
    check(order.quantity === 2 && order.status === "placed", order);
    const ordered = { path: { orderId: order.id } };
    await api.patchOrder({ ...ordered, body: { status: "approved" }, throwOnError });
    await api.deleteOrder({ ...ordered, throwOnError });
    await fails(404, api.getOrderById(ordered));

    const login = { username: "hey-api", password: "correct horse battery staple" };
    await api.createUser({ body: login, throwOnError });
    const { data: token } = await api.createSession({ body: login, throwOnError });
    const account = { path: { username: login.username } };
    const headers = { Authorization: `Bearer ${token}`, api_key: null };
    const auth = () => undefined;
    const { data: updated } = await api.updateUser({ ...account, body: { firstName: "Ada" }, headers, auth, throwOnError });
    check(updated.firstName === "Ada", updated);
    await api.logoutUser({ headers, auth, throwOnError });
    await fails(401, api.getUserByName({ ...account, headers, auth }));
    await api.deleteUser({ ...account, throwOnError });
    await api.deletePet({ path, throwOnError });
    await fails(404, api.getPetById({ path }));
}

void main();
